"""Peers that fastjournald is measured against: their servers, a load generator, a queue in Lua."""
