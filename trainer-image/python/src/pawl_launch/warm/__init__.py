"""A warm interpreter: the libraries of a script are imported once per attempt, not once per launch.

``python -m pawl_launch.warm train.py ARGUMENTS`` runs the script in a process that was forked from an interpreter which has
imported what the script imports. Everything else is as without it: each launch is a new process that initializes CUDA itself, with
its own environment, working directory, output, exit code and memory, in the process group of its rank.

- :mod:`.client` is the process that the agent starts. It asks for a launch and ends as the launch ended.
- :mod:`.server` is the warm interpreter. It ends with the agent.
- :mod:`.script` finds the imports of a script, and runs it.
- :mod:`.channel` is what the two send to each other.

Outside of Pawl, and where a warm interpreter cannot be started, the client runs the script itself.
"""
