# What the flake offers for one system. PKGS is nixpkgs, ROOT a project: images/, manifests/ and patches/.
{ pkgs, root }:
let
  inherit (pkgs) lib;
  launcher = import ./launcher.nix {
    inherit pkgs;
    root = ../.;
  };

  # The names of locks: manifests/IMAGE.lock.json, and for Arm manifests/IMAGE.arm64.lock.json.
  architecture =
    {
      x86_64-linux = "amd64";
      aarch64-linux = "arm64";
    }
    .${pkgs.stdenv.hostPlatform.system};
  suffix = if architecture == "amd64" then ".lock.json" else ".${architecture}.lock.json";
  specs = map (lib.removeSuffix ".yaml") (
    lib.filter (lib.hasSuffix ".yaml") (lib.attrNames (builtins.readDir (root + "/images")))
  );
  locked = lib.filter (name: builtins.pathExists (root + "/manifests/${name}${suffix}")) specs;
  images = map (
    name:
    import ./image.nix {
      inherit
        pkgs
        root
        launcher
        name
        architecture
        ;
      lockName = "${name}${suffix}";
    }
  ) locked;
  merged = lib.foldl' (all: one: all // one) { };
  app = {
    type = "app";
    program = "${launcher.nvllm}/bin/nvllm";
    meta.description = "Build, prove and serve a patched vLLM";
  };
in
{
  packages = {
    default = launcher.nvllm;
    inherit (launcher) nvllm;
  }
  // merged (map (image: image.packages) images);
  apps = {
    default = app;
    nvllm = app;
  };
  checks = {
    nvllm = pkgs.runCommand "nvllm-starts" { } ''
      ${launcher.nvllm}/bin/nvllm --version >$out
    '';
  }
  // merged (map (image: image.checks) images);
  devShells.default = pkgs.mkShell {
    packages = [
      launcher.python
      pkgs.gitMinimal
    ];
  };
  formatter = pkgs.nixfmt-tree;
}
