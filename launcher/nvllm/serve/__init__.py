"""From a profile to an engine that answers, or to every reason at once why it must not start.

In: project, image and profile, and the host as it is. Out: a launch plan; from it a started, supervised engine and
its run directory. `examine` decides, `planner` makes the plan, `startup` starts, `supervisor` stays.
"""
