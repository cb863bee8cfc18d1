# The launcher: its own files, and a Python with the libraries that pyproject.toml names.
{ pkgs, root }:
let
  inherit (pkgs) lib;
in
rec {
  # Only these files are inputs of a build: a change of docs or tests rebuilds nothing.
  files = builtins.path {
    name = "nvllm-launcher";
    path = root + "/launcher";
    filter = path: _: baseNameOf path != "__pycache__" && !lib.hasSuffix ".pyc" path;
  };

  # What `nvllm build --only` and `nvllm patch` import, and no more: an image has few inputs.
  building = libraries: [
    libraries.cattrs
    libraries.click
    libraries.docker
    libraries.filelock
    libraries.httpx2
    libraries.jsonschema
    libraries.packaging
    libraries.pyyaml
    libraries.rfc8785
    libraries.rich
    libraries.unearth
  ];
  python = pkgs.python3.withPackages (
    libraries:
    building libraries
    ++ [
      libraries.huggingface-hub
      libraries.jinja2
      libraries.matplotlib
      libraries.pip
      libraries.uv
    ]
  );
  builder = pkgs.python3.withPackages building;

  # images/, manifests/ and patches/ come along, so that `nvllm build cpu` works where there is no project.
  project = builtins.path {
    name = "nvllm-project";
    path = root;
    filter =
      path: _:
      let
        inside = lib.removePrefix "${toString root}/" path;
      in
      inside == "Dockerfile"
      || inside == "nvllm.yaml"
      || lib.any (top: inside == top || lib.hasPrefix "${top}/" inside) [
        "images"
        "manifests"
        "patches"
        "launcher"
      ]
      && baseNameOf path != "__pycache__";
  };
  nvllm = pkgs.writeShellApplication {
    name = "nvllm";
    runtimeInputs = [
      python
      pkgs.gitMinimal
    ];
    text = ''
      export PYTHONPATH=${project}/launcher
      exec ${python}/bin/python3 -P -m nvllm "$@"
    '';
  };
}
