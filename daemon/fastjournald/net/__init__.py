"""Network shell: listeners, TLS, admission control, and the sessions of connected clients."""
