// Small files that outlive the process: one process measures something, the next one reads it. A lost file
// only costs the measurement again, so nothing here throws when the disk fails.
#pragma once

#include <optional>
#include <string>

namespace sparseloom::runtime {

/// The folder of the cache files, by the XDG rules: `own` (SPARSELOOM_CACHE) if it is set, else
/// `xdg`/sparseloom if that is an absolute path, else `home`/.cache/sparseloom. Empty if none of them is set
/// or `own` is "off".
std::string cache_folder(const char* own, const char* xdg, const char* home);

/// cache_folder with the values of this process's environment.
std::string cache_folder();

/// The content of a regular file of at most 64 KiB; nothing for anything else.
std::optional<std::string> read_small_file(const std::string& path);

/// Makes `text` the whole content of folder/name, and creates the folder if needed. Readers and other writers
/// see either the old file or the new one, never a part. Returns the reason if that failed, else an empty
/// string.
std::string replace_file(const std::string& folder, const std::string& name, const std::string& text);

/// The 64-bit FNV-1a hash in hexadecimal. It detects damaged files and different keys; it does not protect
/// against malice.
std::string fingerprint(const std::string& text);

}  // namespace sparseloom::runtime
