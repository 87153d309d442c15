"""The HTTP client: OpenAI JSON to nouns and back (`wire`), what to try again (`retry`), one session (`client`)."""
