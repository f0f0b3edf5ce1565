"""``python -m fj_forwarder``."""

from fj_forwarder.main import main

main()
