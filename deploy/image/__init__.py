"""The container image, built without Docker: Debian packages and our wheel in one archive. `make image` makes it."""
