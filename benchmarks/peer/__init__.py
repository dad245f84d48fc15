"""The Go programs to measure against."""
