"""Serving a profile: an engine that answers, or every reason at once why it must not start.

In: project, image, profile and host. Out: a launch plan; from it a running, supervised engine and its run directory.
`service` says in which order: `examination` decides whether it may start, and asks `planner` for the plan; `startup`
starts it, `supervisor` watches it, `stopping` ends it.
"""
