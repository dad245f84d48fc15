"""A release: files made of a tag and signed, and their verification. `make release` and `release-verify` use it."""
