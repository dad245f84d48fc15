"""What a stranger sees: the README's commands in a bare Debian that has nothing of this machine (`make fresh`)."""
