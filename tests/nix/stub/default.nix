# Stands in for nixpkgs: exactly what the flake uses, made of the programs of this machine in the seed (see seed.py).
# Names and arguments are nixpkgs'; one that nixpkgs does not have would pass here all the same.
{ system }:
let
  lib = import ./lib.nix;

  # It is in the store already, under this hash. As a part of the stub it would be copied by every command.
  seed = derivation {
    name = "seed";
    inherit system;
    builder = "the seed was not added to the store";
    outputHashMode = "recursive";
    outputHashAlgo = "sha256";
    outputHash = builtins.readFile ./seed.hash;
  };

  # Debian's busybox is static, and picks its applet by the name it is called by: its file must be called busybox.
  sh =
    {
      name,
      script,
      env ? { },
    }:
    derivation (
      {
        inherit name system;
        builder = "${seed}/busybox";
        args = [
          "sh"
          "-euc"
          script
        ];
      }
      // env
    );
  busybox = sh {
    name = "busybox";
    script = ''
      ${seed}/busybox mkdir -p $out/bin
      ${seed}/busybox cp ${seed}/busybox $out/bin/busybox
      $out/bin/busybox --install -s $out/bin
    '';
  };

  # A program of the seed, behind its own loader: a sandbox has no /lib64.
  wrapped =
    name: exports:
    sh {
      inherit name;
      env.PATH = "${busybox}/bin";
      script = ''
        mkdir -p $out/bin
        {
          echo '#!${busybox}/bin/sh'
          echo '${exports}'
          echo 'exec ${seed}/lib/loader --argv0 "$0" --library-path ${seed}/lib ${seed}/bin/${name} "$@"'
        } >$out/bin/${name}
        chmod +x $out/bin/${name}
      '';
    };
in
rec {
  inherit lib;
  stdenv.hostPlatform = { inherit system; };

  runCommand =
    name:
    {
      nativeBuildInputs ? [ ],
    }:
    script:
    sh {
      inherit name;
      inherit script;
      env.PATH = lib.makeBinPath (nativeBuildInputs ++ [ busybox ]);
    };

  # A fixed output: Nix builds it only if no store path has its name and hash.
  requireFile =
    {
      name,
      sha256,
      message,
    }:
    sh {
      inherit name;
      script = "cat >&2 <<'END'\n${message}\nEND\nexit 1";
      env = {
        PATH = "${busybox}/bin";
        outputHashMode = "flat";
        outputHashAlgo = "sha256";
        outputHash = sha256;
      };
    };

  writeShellApplication =
    {
      name,
      runtimeInputs ? [ ],
      text,
    }:
    sh {
      inherit name;
      env = {
        PATH = "${busybox}/bin";
        text = ''
          #!${busybox}/bin/sh
          set -eu
          export PATH="${lib.makeBinPath runtimeInputs}:$PATH"
          ${text}
        '';
      };
      script = ''
        mkdir -p $out/bin
        echo "$text" >$out/bin/${name}
        chmod +x $out/bin/${name}
      '';
    };

  # `nix develop` wants a builder called bash, `outputs`, and a $stdenv with a setup file.
  mkShell =
    { packages }:
    derivation {
      name = "shell";
      inherit system;
      outputs = [ "out" ];
      builder = "${bash}/bin/bash";
      args = [
        "-c"
        ": >$out"
      ];
      stdenv = sh {
        name = "stdenv";
        env.PATH = "${busybox}/bin";
        script = "mkdir $out; echo 'export PATH=$shellPath:$PATH' >$out/setup";
      };
      shellPath = lib.makeBinPath (packages ++ [ busybox ]);
    };
  bash = wrapped "bash" "";
  bashInteractive = bash;
  gitMinimal = wrapped "git" "export GIT_CONFIG_NOSYSTEM=1";
  nixfmt-tree = writeShellApplication {
    name = "nixfmt-tree";
    text = "echo formatted";
  };

  python3 = {
    # All libraries are in one directory of the seed; only their names are held.
    withPackages =
      chosen:
      let
        known = lib.genAttrs (lib.importJSON ./libraries.json) (name: name);
      in
      assert lib.filter (name: !known ? ${name}) (chosen known) == [ ];
      wrapped "python3" "export PYTHONHOME=/nonexistent PYTHONPATH=\${PYTHONPATH:+$PYTHONPATH:}${seed}/python:${seed}/python/lib-dynload:${seed}/libraries";
  };
}
