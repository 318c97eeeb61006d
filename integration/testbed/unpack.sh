# Sourced by torch/unpack, trixie/unpack and machine/unpack, which put a folder of unpacked packages into the cache, once.

# Prints the folder and ends the script if the cache has it. Otherwise makes the folder $part, which is removed at the end.
# Arguments: the name of the folder for all of its kind, and what the script was asked for.
begin() {
  local cache=${LOCKSTEP_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/lockstep}/$1
  # Another way to unpack, or other packages, have another folder.
  folder=$cache/$({ cat "$0" "${BASH_SOURCE[0]}"; echo "$@"; } | sha256sum | cut -c -16)
  if [ -d "$folder" ]; then
    echo "$folder"
    exit
  fi
  mkdir -p "$cache"
  part=$(mktemp -d "$cache/part-XXXXXX")
  trap 'rm -rf "$part"' EXIT
}

# Puts a folder into the cache, and prints where it is there.
finish() {
  # Another process may have been faster.
  mv --no-target-directory "$1" "$folder" 2> /dev/null || [ -d "$folder" ]
  echo "$folder"
}
