"""An API server subset over HTTP, faithful where it counts: versions, conflicts, watches, subresources, validation."""
