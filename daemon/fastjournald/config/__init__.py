"""Configuration: from command line and file to a checked ``Config``.

options            the declaration of each option
command_line       flags and help, from the declaration
load               values of the file, and checks of several options together
socket_activation  listening sockets that the service manager hands over
"""
