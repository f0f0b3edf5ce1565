"""Network shell: listeners, TLS, transports, and the sessions of connected clients (sans-IO)."""
