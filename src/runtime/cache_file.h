// Small files that outlive the process: one process measures something, the next one reads it. A lost file
// only costs the measurement again, so nothing here throws when the disk fails.
#pragma once

#include <optional>
#include <string>

namespace sparseloom::runtime {

/// The folder of the cache files, by the XDG rules: `own` (SPARSELOOM_CACHE) if it is set, otherwise
/// `xdg`/sparseloom if that is an absolute path, otherwise `home`/.cache/sparseloom. Empty if none of them is
/// set or `own` is "off".
std::string cache_folder(const char* own, const char* xdg, const char* home);

/// cache_folder with the values of this process's environment.
std::string cache_folder();

struct SmallFile {
  std::optional<std::string> text;
  std::string ignored;  // why an existing file was not read: another user wrote it, or might have
};

/// The content of a regular file of at most 64 KiB that belongs to this user or to root, and that no other
/// user may write; nothing otherwise. A link is not followed: it may lead to a file that changes.
SmallFile read_small_file(const std::string& path);

/// Makes `text` the whole content of folder/name, and creates the folder if needed, for this user only.
/// Readers and other writers see either the whole old file or the whole new one. Returns the reason if that
/// failed, otherwise an empty string.
std::string replace_file(const std::string& folder, const std::string& name, const std::string& text);

/// The 64-bit FNV-1a hash in hexadecimal. It detects damaged files and different keys; it does not protect
/// against malice.
std::string fingerprint(const std::string& text);

}  // namespace sparseloom::runtime
