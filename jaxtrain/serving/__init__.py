"""From a stored model to answers in text: loading, requests, files of prompts, the HTTP server."""
