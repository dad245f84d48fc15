"""Access control of the embedded API server: who a request comes from, and what that user may do.

Called by the server for each HTTPS request, and by the handler for reviews and tokens. It reads the store and keeps an
index of roles and bindings; of the machine it touches one file, the key that signs tokens.
"""
