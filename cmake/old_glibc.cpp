// What headers of newer glibcs call, and glibc 2.28 does not have. Part of wheels alone
// (SPARSELOOM_MANYLINUX).

// libstdc++ counts the owners of a shared_ptr without atomics where this is true; false is right in every
// process.
extern "C" [[gnu::visibility("hidden")]] char __libc_single_threaded;
char __libc_single_threaded = 0;

// Functions of their own since glibc 2.33; before, headers called these, which every later glibc still has.
struct stat;
extern "C" int __xstat(int version, const char* path, struct stat* found);
extern "C" int __fxstat(int version, int file, struct stat* found);

namespace {
constexpr int kVersion = 1;  // _STAT_VER of x86-64
}

extern "C" [[gnu::visibility("hidden")]] int stat(const char* path, struct stat* found) {
  return __xstat(kVersion, path, found);
}
extern "C" [[gnu::visibility("hidden")]] int fstat(int file, struct stat* found) {
  return __fxstat(kVersion, file, found);
}
