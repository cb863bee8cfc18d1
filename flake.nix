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
      # The outputs for the project ROOT: a directory with images/, manifests/ and patches/.
      project =
        root:
        let
          made = lib.genAttrs systems (
            system:
            import ./nix {
              pkgs = import nixpkgs { inherit system; };
              inherit root;
            }
          );
        in
        lib.genAttrs [
          "packages"
          "apps"
          "checks"
          "devShells"
          "formatter"
        ] (name: lib.mapAttrs (_: one: one.${name}) made);
    in
    project ./.
    // {
      lib = { inherit project; };
      overlays.default = final: _: {
        inherit (self.packages.${final.stdenv.hostPlatform.system}) nvllm;
      };
    };
}
