#!/usr/bin/env bash
# Runs the device tests on Vulkan where there is no GPU, on Mesa's lavapipe: `tests/vulkan.sh VENV`, on Debian 12.
# Compiles llama-cpp-python into VENV, a quarter of an hour on two cores; a second run uses what the first one left.
set -euo pipefail

venv=$(realpath -m "${1:?usage: tests/vulkan.sh VENV}")
cd "$(dirname "$0")/.."
root=$([ "$(id -u)" = 0 ] || echo sudo)
next=trixie

packages=(cmake g++ make python3-venv glslc libvulkan-dev mesa-vulkan-drivers)
if ! dpkg --status "${packages[@]}" > /dev/null 2>&1; then
    $root apt-get update
    $root apt-get install --yes --no-install-recommends "${packages[@]}"
fi

# Debian 12's Vulkan headers (1.3.239) lack vk::LayerSettingEXT: those of the next release are unpacked beside, from the
# mirror that apt uses, without adding that release to the system.
headers=$venv/vulkan-headers
if [ ! -e "$headers/usr/share/cmake/SPIRV-Headers" ]; then
    apt=$(mktemp --directory)
    trap 'rm -rf "$apt"' EXIT
    mkdir -p "$apt/lists/partial" "$apt/archives/partial"
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Codename: bookworm' | sed -n 1p)
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $next main" > "$apt/sources.list"
    options=(-o Dir::Etc::sourcelist="$apt/sources.list" -o Dir::Etc::sourceparts=- -o Dir::State::lists="$apt/lists"
        -o Dir::Cache="$apt" -o APT::Sandbox::User=root)
    apt-get "${options[@]}" update
    (cd "$apt" && apt-get "${options[@]}" download libvulkan-dev spirv-headers)
    mkdir -p "$headers"
    for package in "$apt"/*.deb; do
        dpkg --extract "$package" "$headers"
    done
fi

if [ ! -x "$venv/bin/pip" ]; then
    python3 -m venv "$venv"
fi
if ! compgen -G "$venv/lib/python3*/site-packages/llama_cpp/lib/libggml-vulkan.so" > /dev/null; then
    # pip would take a wheel from its cache whatever CMAKE_ARGS says.
    CMAKE_ARGS="-DGGML_VULKAN=on -DVulkan_INCLUDE_DIR=$headers/usr/include
        -DSPIRV-Headers_DIR=$headers/usr/share/cmake/SPIRV-Headers" \
        "$venv/bin/pip" install --no-cache-dir --no-binary llama-cpp-python 'llama-cpp-python>=0.3.36,<0.3.37'
fi
"$venv/bin/pip" install --quiet --editable '.[smollm2,train,dev]'

# ggml passes over a device that is a CPU unless it is named.
export GGML_VK_VISIBLE_DEVICES=0 ICARUS_TEST_DEVICE=Vulkan0
"$venv/bin/pytest" tests/devices
