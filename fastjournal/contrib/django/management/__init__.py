"""Management commands, where Django looks for them.

commands   one module for each
"""
