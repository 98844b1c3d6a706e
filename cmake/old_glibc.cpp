// What headers of glibc 2.32 and newer name, and older ones do not have. Part of wheels alone (SPARSELOOM_MANYLINUX).

// libstdc++ counts the owners of a shared_ptr without atomics where this is true; false is right in every process.
extern "C" [[gnu::visibility("hidden")]] char __libc_single_threaded;
char __libc_single_threaded = 0;
