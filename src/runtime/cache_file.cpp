// Reading and atomically replacing the small files of the cache folder, and the location of that folder.
#include "runtime/cache_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <system_error>
#include <utility>

namespace sparseloom::runtime {
namespace {

constexpr std::size_t kMostBytes = 64 << 10;

bool is_set(const char* value) { return value != nullptr && *value != '\0'; }

// A file descriptor that closes itself.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

bool write_all(int fd, const std::string& text) {
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t wrote = ::write(fd, text.data() + done, text.size() - done);
    if (wrote > 0)
      done += static_cast<std::size_t>(wrote);
    else if (wrote == 0 || errno != EINTR)
      return false;
  }
  return true;
}

std::string reason_of(int error) { return std::generic_category().message(error); }

// Makes a folder and its parents, for this user only. Returns 0, or the error of the one that failed.
int make_folders(const std::string& folder) {
  if (::mkdir(folder.c_str(), 0700) == 0) return 0;
  struct stat about;
  if (errno == EEXIST) return ::stat(folder.c_str(), &about) == 0 && S_ISDIR(about.st_mode) ? 0 : ENOTDIR;
  const std::size_t slash = folder.find_last_of('/');
  if (errno != ENOENT || slash == std::string::npos || slash == 0) return errno;
  if (const int error = make_folders(folder.substr(0, slash)); error != 0) return error;
  return ::mkdir(folder.c_str(), 0700) == 0 || errno == EEXIST ? 0 : errno;
}

}  // namespace

std::string cache_folder(const char* own, const char* xdg, const char* home) {
  if (is_set(own)) return std::strcmp(own, "off") == 0 ? "" : own;
  if (is_set(xdg) && *xdg == '/') return std::string(xdg) + "/sparseloom";
  return is_set(home) ? std::string(home) + "/.cache/sparseloom" : "";
}

std::string cache_folder() {
  return cache_folder(std::getenv("SPARSELOOM_CACHE"), std::getenv("XDG_CACHE_HOME"), std::getenv("HOME"));
}

SmallFile read_small_file(const std::string& path) {
  // Without O_NONBLOCK, a pipe would block it.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW));
  if (file.get() < 0 && errno == ELOOP) return {{}, path + " is a link, which is not followed"};
  struct stat about;
  if (file.get() < 0 || ::fstat(file.get(), &about) != 0) return {};
  if (!S_ISREG(about.st_mode)) return {{}, path + " is no regular file"};
  if (about.st_uid != ::geteuid() && about.st_uid != 0)
    return {{}, path + " belongs to another user (id " + std::to_string(about.st_uid) + ")"};
  if ((about.st_mode & (S_IWGRP | S_IWOTH)) != 0) return {{}, path + " may be written by other users"};
  std::string text(kMostBytes + 1, '\0');
  std::size_t size = 0;
  while (size < text.size()) {
    const ssize_t got = ::read(file.get(), text.data() + size, text.size() - size);
    if (got == 0) break;
    if (got > 0)
      size += static_cast<std::size_t>(got);
    else if (errno != EINTR)
      return {};
  }
  if (size > kMostBytes) return {};
  text.resize(size);
  return {std::move(text), {}};
}

std::string replace_file(const std::string& folder, const std::string& name, const std::string& text) {
  if (const int failed = make_folders(folder); failed != 0)
    return "cannot make " + folder + ": " + reason_of(failed);
  const std::string path = folder + "/" + name;
  // mkostemp uses an unpredictable name, and no existing file (O_EXCL): in a folder that others may write, a
  // pipe with a name that they guess would block the process, and a link would redirect it.
  std::string part = path + ".XXXXXX";
  int error = 0;
  {
    const Descriptor file(::mkostemp(part.data(), O_CLOEXEC));
    if (file.get() < 0) return "cannot write in " + folder + ": " + reason_of(errno);
    if (!write_all(file.get(), text)) error = errno;
  }
  if (error == 0 && ::rename(part.c_str(), path.c_str()) != 0) error = errno;
  if (error == 0) return {};
  ::unlink(part.c_str());
  return "cannot write " + path + ": " + reason_of(error);
}

std::string fingerprint(const std::string& text) {
  // Offset basis and prime of 64-bit FNV-1a.
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(hash));
  return digits;
}

}  // namespace sparseloom::runtime
