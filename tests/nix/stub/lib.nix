# Stands in for nixpkgs' lib: exactly what the flake uses.
let
  inherit (builtins)
    attrNames
    concatStringsSep
    filter
    foldl'
    fromJSON
    listToAttrs
    map
    readFile
    replaceStrings
    stringLength
    substring
    ;
in
rec {
  inherit
    attrNames
    concatStringsSep
    filter
    foldl'
    replaceStrings
    substring
    ;
  inherit (builtins) any attrValues elem mapAttrs;
  concatMapStringsSep = separator: f: list: concatStringsSep separator (map f list);
  nameValuePair = name: value: { inherit name value; };
  genAttrs = names: f: listToAttrs (map (name: nameValuePair name (f name)) names);
  mapAttrs' = f: set: listToAttrs (map (name: f name set.${name}) (attrNames set));
  optionalAttrs = condition: set: if condition then set else { };
  optional = condition: one: if condition then [ one ] else [ ];
  importJSON = path: fromJSON (readFile path);
  hasPrefix = prefix: text: substring 0 (stringLength prefix) text == prefix;
  hasSuffix =
    suffix: text:
    let
      start = stringLength text - stringLength suffix;
    in
    start >= 0 && substring start (-1) text == suffix;
  removePrefix = prefix: text: if hasPrefix prefix text then substring (stringLength prefix) (-1) text else text;
  removeSuffix =
    suffix: text:
    if hasSuffix suffix text then substring 0 (stringLength text - stringLength suffix) text else text;
  hasInfix = infix: text: replaceStrings [ infix ] [ "" ] text != text;
  unique = foldl' (found: one: if builtins.elem one found then found else found ++ [ one ]) [ ];
  makeBinPath = packages: concatStringsSep ":" (map (one: "${one}/bin") packages);
}
