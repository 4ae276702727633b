# Cross build for AArch64 on an x86-64 machine, tests run under emulation (preset aarch64; tools/test_long.sh). Packages:
# g++-aarch64-linux-gnu, qemu-user, googletest; fmt, spdlog and nlohmann_json are used by their headers alone.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
# gtest's project asks for C as well.
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
find_program(TENSORFOLD_QEMU NAMES qemu-aarch64 qemu-aarch64-static REQUIRED)
set(CMAKE_CROSSCOMPILING_EMULATOR ${TENSORFOLD_QEMU} -L /usr/aarch64-linux-gnu)
