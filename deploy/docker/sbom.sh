#!/bin/sh
# Prints a CycloneDX SBOM of the image in which it runs: Braid, Debian's packages, and the components in a
# file with one component per line.
set -eu
version=$1
components=$2

printf '{"bomFormat":"CycloneDX","specVersion":"1.5","version":1,\n'
printf '"metadata":{"component":{"type":"application","name":"braid","version":"%s"}},\n' "$version"
printf '"components":[\n'
{
  dpkg-query --show --showformat '{"type":"library","name":"${Package}","version":"${Version}","purl":"pkg:deb/debian/${Package}@${Version}?arch=${Architecture}"}\n'
  cat "$components"
} | sed '$!s/$/,/'
printf ']}\n'
