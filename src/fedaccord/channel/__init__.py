"""What happens to an upload, or to a number beside it, on its way from a client to the server."""
