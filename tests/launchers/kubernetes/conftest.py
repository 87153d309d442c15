"""Fixtures for the tests of the launcher kubernetes."""

import pytest

from tests.launchers.kubernetes.mock_cluster import MockCluster


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """Yield a mock cluster, with its kubeconfig as that of the user."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with MockCluster() as mock:
        monkeypatch.setenv("KUBECONFIG", str(mock.kubeconfig(tmp_path)))
        yield mock
