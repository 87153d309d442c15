# Run the command line of the launcher `container` with a real Podman without root, as root on Debian or Ubuntu:
# sh tests/launchers/rootless_podman.sh PYTHON
# The image is busybox alone, and a CDI device without content stands for the GPU. Prints what ran, and that the runtime
# refuses memlock=-1, which is why it is no default.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
python=$1
user=serve-eval-podman
if ! { command -v podman && command -v runc && command -v busybox && command -v newuidmap; } > /dev/null; then
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends podman runc busybox-static uidmap > /dev/null
fi
id "$user" > /dev/null 2>&1 || useradd --create-home --shell /bin/sh "$user"
made_queue='' image=$(mktemp -d) spec=/etc/cdi/serve-eval-test.yaml
cleanup() {
    rm -rf "$image" "$spec"
    [ -z "$made_queue" ] || { umount /dev/mqueue; rmdir /dev/mqueue; }
    pkill -KILL -u "$user" || true
    userdel --remove "$user" 2> /dev/null || true
}
trap cleanup EXIT
if [ ! -d /dev/mqueue ]; then  # every ordinary Linux has it; --ipc host needs it
    mkdir /dev/mqueue && mount -t mqueue none /dev/mqueue && made_queue=yes
fi
mkdir -p "$image/bin" /etc/cdi
cp "$(command -v busybox)" "$image/bin/busybox"
ln -s busybox "$image/bin/sh"
tar -C "$image" -cf "$image.tar" . && chmod 644 "$image.tar"
cat > "$spec" <<'END'
cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices: [{name: "0", containerEdits: {env: [GIVEN=gpu0]}}]
END
line=$(cd "$root" && "$python" - <<'END'
import shlex
from serve_eval.launchers._trtllm.command_line import Place, Server
from serve_eval.launchers._trtllm.containers import Container, wrap
words = ("/bin/busybox", "sh", "-c", "echo ran with $GIVEN, memlock $(ulimit -l), stack $(ulimit -s)")
server = Server(name="trtllm", argv=words, probe=words, place=Place(host="127.0.0.1", port=8000, gpus=("0",)))
print(shlex.join(wrap(server, Container(image="localhost/tiny:1", engine="podman"), "test").argv))
END
)
as_user() {
    (cd / && runuser -u "$user" -- env HOME="/home/$user" XDG_RUNTIME_DIR= sh -c "$1")
}
as_user 'mkdir -p ~/.config/containers && printf "[engine]\nruntime = \"runc\"\n" > ~/.config/containers/containers.conf'
as_user "podman import -q '$image.tar' localhost/tiny:1" > /dev/null
rm -f "$image.tar"
echo "$line"
as_user "$line"
refused=$(echo "$line" | sed 's/--ulimit host/--ulimit memlock=-1/')
if as_user "$refused" 2> "$image/said"; then
    echo "memlock=-1 was not refused: this user may lock any memory"
else
    echo "memlock=-1 is refused: $(tail -n 1 "$image/said")"
fi
