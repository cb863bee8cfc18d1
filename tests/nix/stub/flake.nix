{
  outputs = _: {
    lib = import ./lib.nix;
  };
}
