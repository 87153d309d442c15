"""Carry requests over our own HTTP/1.1 connections, and check that replies are in step."""
