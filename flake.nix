{
  description = "nvllm: build, prove and serve a patched vLLM";

  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-unstable";

  outputs =
    { self, nixpkgs }:
    let
      inherit (nixpkgs) lib;
      systems = [
        "x86_64-linux"
        "aarch64-linux"
      ];
      made = lib.genAttrs systems (
        system:
        import ./nix {
          pkgs = import nixpkgs { inherit system; };
          root = ./.;
        }
      );
      each = name: lib.mapAttrs (_: one: one.${name}) made;
    in
    {
      packages = each "packages";
      apps = each "apps";
      checks = each "checks";
      devShells = each "devShells";
      formatter = each "formatter";
      overlays.default = final: _: {
        inherit (self.packages.${final.stdenv.hostPlatform.system}) nvllm;
      };
    };
}
