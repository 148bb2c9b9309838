#include "replay/files/data_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "platform/checksum.h"
#include "platform/other_version.h"
#include "replay/files/manifest.h"

namespace shmtree::replay {

using namespace platform;

namespace {

constexpr std::uint64_t kPiece = 256u << 10;          // bytes; a piece stays in the caches between checksum and copy
constexpr std::uint64_t kWriteBackBytes = 32u << 20;  // bytes after which write-back is started

std::uint32_t checksum_of(DataHeader header) noexcept {
  header.checksum = 0;
  return crc32c(0, &header, sizeof header);
}

}  // namespace

Result<DataFile> DataFile::begin(const Folder& folder, std::uint64_t number, const unsigned char uuid[16],
                                 ProgressMeter& progress) {
  auto fd = folder.create(data_name(number), kManifestName);
  if (!fd) return std::move(fd).error();
  DataFile file(folder, number, CheckedFd(std::move(*fd)), progress);
  DataHeader header{};
  header.magic = kDataMagic;
  header.version = kSavedVersion;
  header.number = number;
  std::memcpy(header.uuid, uuid, sizeof header.uuid);
  header.checksum = checksum_of(header);
  if (Status done = file.append(&header, sizeof header); !done) return std::move(done).error();
  return file;
}

DataFile::~DataFile() {
  if (fd_.valid() && !is_kept_ && process_ == process_id()) folder_->remove(name_of_file());
}

std::string DataFile::name_of_file() const {
  return data_name(number_);
}

Status DataFile::append(const void* data, std::uint64_t bytes) {
  const auto* from = static_cast<const std::byte*>(data);
  while (bytes != 0) {
    const std::uint64_t piece = std::min(bytes, kPiece);
    at_.checksum = crc32c(at_.checksum, from, piece);
    const auto fd = checked_fd();
    if (!fd) return fd.error();
    if (Status done = write_at(*fd, at_.bytes, from, piece, what()); !done) return done;
    at_.bytes += piece;
    from += piece;
    bytes -= piece;
    progress_->add(piece);
  }
  if (at_.bytes >= begun_ + kWriteBackBytes && fd_.is_ours()) {
    begin_sync(fd_.number(), begun_, at_.bytes - begun_);
    begun_ = at_.bytes;
  }
  return success();
}

Result<int> DataFile::checked_fd() const {
  if (fd_.is_ours()) return fd_.number();
  return closed_by_program(fd_.number(), "cannot write " + what());
}

Result<SavedFile> DataFile::end() {
  const auto fd = checked_fd();
  if (!fd) return fd.error();
  if (Status done = cut_file(*fd, at_.bytes, what()); !done) return std::move(done).error();
  if (Status done = sync_file(*fd, what()); !done) return std::move(done).error();
  return SavedFile{.number = number_, .bytes = at_.bytes, .checksum = at_.checksum, .unused = 0};
}

DataReader::DataReader(const Folder& folder, const SavedFile& file, CheckedFd fd, ProgressMeter* progress)
    : folder_(&folder), file_(&file), fd_(std::move(fd)), progress_(progress), scratch_(kPiece) {}

Result<DataReader> DataReader::begin(const Folder& folder, const SavedFile& file, ProgressMeter* progress) {
  const std::string name = data_name(file.number);
  auto fd = folder.open_file(name);
  if (!fd && fd.code() == Code::kNotFound) return corrupt(folder, name, "is missing");
  if (!fd) return std::move(fd).error();
  auto size = file_size(fd->get());
  if (!size) return std::move(size).error();
  if (*size == file.bytes) return DataReader(folder, file, CheckedFd(std::move(*fd)), progress);
  return corrupt(folder, name, "has " + std::to_string(*size) + " bytes; it must have " + std::to_string(file.bytes));
}

Error DataReader::error(const std::string& what) const {
  return corrupt(*folder_, data_name(file_->number), what);
}

Error DataReader::unreadable(std::uint64_t offset, int error_number) const {
  const std::string what = "cannot be read at byte " + std::to_string(offset);
  if (error_number == 0) return error(what);
  return os_error(folder_->path() + "/" + data_name(file_->number) + ": " + what, error_number);
}

Status DataReader::read_header() {
  DataHeader header;
  if (file_->bytes < sizeof header) return error("is too short");
  if (Status done = read(&header, sizeof header); !done) return done;
  if (header.magic != kDataMagic) return error("is not a file of a replay buffer");
  if (header.version != kSavedVersion) {  // checked before the checksum: its offset may differ between versions
    return platform::other_version(folder_->path() + "/" + data_name(file_->number) + " has version", header.version,
                                   kSavedVersion);
  }
  if (header.checksum != checksum_of(header)) return error("has a header with a wrong checksum");
  if (header.number == file_->number) return success();
  return error("has the header of file number " + std::to_string(header.number));
}

Status DataReader::peek(std::uint64_t offset, std::vector<std::byte>& out) const {
  const auto fd = fd_.get("cannot read a file of a replay buffer");
  if (!fd) return fd.error();
  return read_at(*fd, offset, out.data(), out.size()) ? success() : unreadable(offset, errno);
}

Status DataReader::read(void* out, std::uint64_t bytes) {
  auto* to = static_cast<std::byte*>(out);
  while (bytes != 0) {
    const std::uint64_t piece = std::min(bytes, kPiece);
    const auto fd = fd_.get("cannot read a file of a replay buffer");
    if (!fd) return fd.error();
    if (!read_at(*fd, at_, to, piece)) return unreadable(at_, errno);
    checksum_ = crc32c(checksum_, to, piece);
    at_ += piece;
    to += piece;
    bytes -= piece;
    if (progress_ != nullptr) progress_->add(piece);
  }
  return success();
}

Status DataReader::skip(std::uint64_t bytes) {
  while (bytes != 0) {
    const std::uint64_t piece = std::min(bytes, kPiece);
    if (Status done = read(scratch_.data(), piece); !done) return done;
    bytes -= piece;
  }
  return success();
}

Status DataReader::end() {
  if (Status done = skip(file_->bytes - at_); !done) return done;
  if (checksum_ == file_->checksum) return success();
  return error("was altered: its " + std::to_string(file_->bytes) + " bytes have the checksum " +
               std::to_string(checksum_) + "; it must be " + std::to_string(file_->checksum));
}

}  // namespace shmtree::replay
