#define ZLIB_CONST  // zlib.h: inputs are const
#include "core/data/unpacked_file.h"

#include <fmt/format.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "core/base/error.h"

namespace megalith {

namespace {

constexpr std::size_t kBlock = std::size_t{1} << 17;

class GzipUnpacker : public Unpacker {
 public:
  GzipUnpacker() {
    constexpr int kWindowAndGzip = 15 + 16;
    if (inflateInit2(&stream_, kWindowAndGzip) != Z_OK) throw std::bad_alloc();
  }
  ~GzipUnpacker() override { inflateEnd(&stream_); }
  GzipUnpacker(const GzipUnpacker&) = delete;
  GzipUnpacker& operator=(const GzipUnpacker&) = delete;

  std::string_view unpack(std::span<const std::byte>& in, std::span<std::byte>& out) override {
    if (is_complete_) inflateReset(&stream_);  // the next member
    is_complete_ = false;
    stream_.next_in = reinterpret_cast<const Bytef*>(in.data());
    stream_.avail_in = static_cast<uInt>(in.size());
    stream_.next_out = reinterpret_cast<Bytef*>(out.data());
    const std::size_t most = std::min(out.size(), kBlock);
    stream_.avail_out = static_cast<uInt>(most);
    const int result = inflate(&stream_, Z_NO_FLUSH);
    in = in.last(stream_.avail_in);
    out = out.subspan(most - stream_.avail_out);
    if (result == Z_MEM_ERROR) throw std::bad_alloc();
    is_complete_ = result == Z_STREAM_END;
    if (is_complete_ || result == Z_OK || result == Z_BUF_ERROR) return {};
    return stream_.msg != nullptr ? stream_.msg : "invalid data";
  }
  bool is_complete() const override { return is_complete_; }

 private:
  z_stream stream_{};
  bool is_complete_ = false;
};

class ZstandardUnpacker : public Unpacker {
 public:
  ZstandardUnpacker() {
    if (!stream_) throw std::bad_alloc();
  }

  std::string_view unpack(std::span<const std::byte>& in, std::span<std::byte>& out) override {
    // In the sizes that the library proposes, so that the offset of damage is that of its block.
    ZSTD_inBuffer from{in.data(), std::min(in.size(), next_bytes_), 0};
    ZSTD_outBuffer to{out.data(), out.size(), 0};
    const std::size_t result = ZSTD_decompressStream(stream_.get(), &to, &from);
    in = in.subspan(from.pos);
    out = out.subspan(to.pos);
    if (ZSTD_isError(result) != 0) return ZSTD_getErrorName(result);
    is_complete_ = result == 0;
    next_bytes_ = is_complete_ ? kFirstBytes : result;
    return {};
  }
  bool is_complete() const override { return is_complete_; }

 private:
  static constexpr std::size_t kFirstBytes = 16;  // about a frame's header
  struct Free {
    void operator()(ZSTD_DStream* stream) const { ZSTD_freeDStream(stream); }
  };
  std::unique_ptr<ZSTD_DStream, Free> stream_{ZSTD_createDStream()};
  std::size_t next_bytes_ = kFirstBytes;
  bool is_complete_ = false;
};

}  // namespace

Compression compression_of(std::string_view beginning) {
  if (beginning.starts_with("\x1f\x8b\x08")) return Compression::kGzip;
  if (beginning.starts_with("\x28\xb5\x2f\xfd")) return Compression::kZstandard;
  const bool is_skippable = beginning.size() >= kCompressionBytes && (beginning[0] & '\xf0') == '\x50' &&
                            beginning.substr(1).starts_with("\x2a\x4d\x18");
  return is_skippable ? Compression::kZstandard : Compression::kNone;  // pzstd begins with a frame to skip
}

UnpackedFile::UnpackedFile(const std::string& path) : file_(File::open_stream(path)) {}

bool UnpackedFile::fill() {
  block_.resize(kBlock);
  const std::size_t got = file_.read_next(block_);
  offset_ += got;
  unread_ = std::span(block_).first(got);
  return got > 0;
}

void UnpackedFile::begin() {
  has_begun_ = true;
  fill();
  compression_ = compression_of({reinterpret_cast<const char*>(unread_.data()), unread_.size()});
  if (compression_ == Compression::kGzip) unpacker_ = std::make_unique<GzipUnpacker>();
  if (compression_ == Compression::kZstandard) unpacker_ = std::make_unique<ZstandardUnpacker>();
}

std::size_t UnpackedFile::read(std::span<std::byte> out) {
  if (!has_begun_) begin();
  std::span<std::byte> free = out;
  while (!free.empty()) {
    if (!unpacker_) {
      if (unread_.empty() && !fill()) break;
      const std::size_t bytes = std::min(unread_.size(), free.size());
      std::memcpy(free.data(), unread_.data(), bytes);
      unread_ = unread_.subspan(bytes);
      free = free.subspan(bytes);
      continue;
    }
    const bool is_at_end = unread_.empty() && !fill();
    if (is_at_end && unpacker_->is_complete()) break;
    const std::size_t before = free.size();
    const std::string_view problem = unpacker_->unpack(unread_, free);  // may have output left without input
    const bool is_cut = is_at_end && free.size() == before && !unpacker_->is_complete();
    if (problem.empty() && !is_cut) continue;
    const std::string got = is_cut ? fmt::format("an end within it at byte {}", offset_)
                                   : fmt::format("damaged data at byte {}: {}", offset_ - unread_.size(), problem);
    refuse_format(path(), compression_ == Compression::kGzip ? "complete gzip data" : "complete Zstandard data", got,
                  "copy or pack the file again");
  }
  return out.size() - free.size();
}

}  // namespace megalith
