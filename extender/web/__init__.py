"""HTTP: verbs and probes as raw ASGI, the console's pages through FastAPI. Logic does not belong here."""
