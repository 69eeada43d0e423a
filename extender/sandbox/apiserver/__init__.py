"""A subset of the API server over HTTP: resource versions, conflicts, watches, subresources, validation of claims."""
