"""The command line: one module a command, the frame that all of them share, and the only room that prints.

In: arguments and the environment. Out: text or JSON, and an exit code. What a command does is done by the rooms
below; `main` knows the commands by name and imports the module of the one that is asked for.
"""
