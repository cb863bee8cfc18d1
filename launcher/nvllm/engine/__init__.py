"""The container engine, Docker or Podman behind Docker's API: which one it is, its images, its containers, its answers.

In: the environment and Docker's contexts; images as layers; launch plans. Out: facts of the engine, its images and its
containers. Only this room imports docker. `images` and `containers` are what an engine has, `client` is the connection
to it, `container` the value that it creates one from.
"""
