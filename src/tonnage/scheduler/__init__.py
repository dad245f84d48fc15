"""Where pods go: nodes in columns, filters, scores, volumes, a queue with hints, and the shell that runs them."""
