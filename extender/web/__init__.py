"""HTTP: the verbs as raw ASGI, everything else through FastAPI. What does not belong here: logic."""
