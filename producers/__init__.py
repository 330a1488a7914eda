"""The ways in: small programs that put requests on the main topic."""
