# The packages and checks of the image NAME. nvllm makes every layer, by the code that runs outside Nix too, so that the
# digests are the same; Nix brings the locked files by their hashes, and builds in a sandbox without a network.
{
  pkgs,
  root,
  launcher,
  name,
  architecture,
  lockName,
}:
let
  inherit (pkgs) lib;
  lock = lib.importJSON (root + "/manifests/${lockName}");
  debian = lock.base.kind == "debian";

  # What decides the image besides the locked files: its spec, its lock and its series.
  wanted = [
    "images"
    "images/${name}.yaml"
    "manifests"
    "manifests/${lockName}"
    "patches"
    "patches/${lock.series.series}"
  ];
  project = builtins.path {
    name = "${name}-project";
    path = root;
    filter =
      path: _:
      let
        inside = lib.removePrefix "${toString root}/" path;
      in
      lib.elem inside wanted || lib.hasPrefix "patches/${lock.series.series}/" inside;
  };

  # A lock names no host, so Nix downloads nothing: each file is in the Nix store under its sha256, or the build says how
  # to bring it. Its name there is its sha256 as well, as in nvllm's store.
  stored =
    file:
    pkgs.requireFile {
      name = file.sha256;
      inherit (file) sha256;
      message = ''
        ${file.path} of image ${name} is not in the Nix store: no file there has sha256
        ${file.sha256}.
        nvllm fetches what the lock names, and gives it to Nix:
          nvllm build ${name} --builder nix
        By hand, a file that has this hash:
          nix-store --add-fixed sha256 ~/.cache/nvllm/store/sha256/${lib.substring 0 2 file.sha256}/${file.sha256}
      '';
    };

  debs = if debian then map (one: one.file) lock.base.packages else [ ];
  wheels = map (one: one.file) lock.wheels;
  named = distribution: map (one: one.file) (lib.filter (one: one.name == distribution) lock.wheels);
  # The C compiler of kernels that runs here. Triton is a wheel of the image; the image's own Python runs it.
  machine =
    {
      amd64 = "_x86_64";
      arm64 = "_aarch64";
    }
    .${architecture};
  zig = map (one: one.file) (
    lib.filter (one: one.name == "ziglang" && lib.hasInfix machine one.file.path) (lock.tools or [ ])
  );

  # Runs SCRIPT with nvllm at hand and the locked FILES in its store. What nvllm keeps lies below $out, for layers to be
  # renamed and not copied; `done` removes it.
  run =
    suffix: files: script:
    pkgs.runCommand "${suffix}-${name}" { nativeBuildInputs = [ launcher.builder ]; } ''
      export HOME=$NIX_BUILD_TOP NVLLM_HOME=$out/.nvllm PYTHONPATH=${launcher.files}
      layers=$NVLLM_HOME/cache/layers
      mkdir -p $layers
      for file in ${lib.concatMapStringsSep " " (file: "${stored file}") (lib.unique files)}; do
        sha256=''${file##*-}
        place=$NVLLM_HOME/cache/store/sha256/$(printf %.2s $sha256)
        mkdir -p $place
        ln -s $file $place/$sha256
      done
      nvllm() {
        python3 -P -m nvllm --project ${project} --platform linux/${architecture} --offline --quiet "$@"
      }
      ${script}
      rm -rf $NVLLM_HOME
    '';

  # A layer is two files, as in nvllm's cache: KEY.tar, and KEY.json, which says its kind, digest and factors.
  layer =
    part: files:
    run "layer-${part}" files ''
      nvllm build ${name} --only ${part}
      mv $layers/*.tar $layers/*.json $out
    '';

  layers =
    lib.optionalAttrs debian { base = layer "base" debs; }
    // {
      wheels = layer "wheels" (debs ++ wheels);
      patches = layer "patches" (debs ++ [ lock.vllm.source ] ++ named lock.vllm.distribution);
    }
    // lib.optionalAttrs (debian && zig != [ ]) {
      kernels = layer "kernels" (
        debs ++ [ lock.vllm.source ] ++ named lock.vllm.distribution ++ named "triton" ++ zig
      );
    };

  source = [ lock.vllm.source ];
  packages = {
    "vllm-src-${name}" = run "vllm-src" source ''
      nvllm patch apply ${name} $out/tree --patches none
      mv $out/tree/* $out/tree/.[!.]* $out
      rmdir $out/tree
    '';
    "vllm-src-patched-${name}" = run "vllm-src-patched" source ''
      nvllm patch apply ${name} $out/tree
      mv $out/tree/* $out/tree/.[!.]* $out
      rmdir $out/tree
    '';
  }
  // lib.mapAttrs' (part: made: lib.nameValuePair "layer-${part}-${name}" made) layers
  // lib.optionalAttrs debian { "oci-${name}" = oci; };

  # An OCI layout. Its layers are links to where they are in the Nix store, so that none is there twice.
  oci = run "oci" (debs ++ [ lock.vllm.source ] ++ wheels ++ zig) ''
    for made in ${lib.concatMapStringsSep " " (made: "${made}") (lib.attrValues layers)}; do
      ln -s $made/* $layers
    done
    nvllm build ${name} --layout $out/layout
    mv $out/layout/* $out
    rmdir $out/layout
    python3 ${./link_layers.py} $layers $out/blobs/sha256
  '';

  # What `nvllm build --record` wrote: a whole image, or only the layers of the patch set.
  record = root + "/manifests/${name}.digests.json";
  recorded =
    if builtins.pathExists record then
      (lib.importJSON record).platforms."linux/${architecture}" or null
    else
      null;
  compared =
    if recorded ? manifest then
      lib.attrValues layers ++ [ oci ]
    else
      [ layers.patches ] ++ lib.optional (layers ? kernels) layers.kernels;
in
{
  inherit packages;
  checks = {
    # Every patch of the series applies to the pinned source or says why not, and there is no patch beside the series.
    "series-${name}" = run "series" source ''
      nvllm patch check ${name} >$out/report || { cat $out/report; exit 1; }
    '';
    # Spec and series are those that the lock was made from.
    "lock-fresh-${name}" = run "lock-fresh" [ ] ''
      nvllm build ${name} --dry-run >$out/report
    '';
  }
  // lib.optionalAttrs (recorded != null) {
    # What Nix builds has the digests that were recorded elsewhere.
    "digests-${name}" =
      pkgs.runCommand "digests-${name}" { nativeBuildInputs = [ launcher.builder ]; }
        ''
          python3 ${./recorded.py} ${record} linux/${architecture} ${
            lib.concatMapStringsSep " " (made: "${made}") compared
          } >$out || { cat $out; exit 1; }
        '';
  };
}
