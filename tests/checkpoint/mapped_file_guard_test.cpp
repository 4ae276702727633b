// A mapped checkpoint that is truncated under a running process: the process must say which file, and end with 1.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test_files.h"

namespace tensorfold {
namespace {

TEST(MappedFileGuard, NamesTheTruncatedFile) {
  TestFolder folder;
  constexpr std::size_t kBytes = 1u << 20;
  const auto path = folder.write("model.gguf", GgufFile().tensor("t", {kBytes / 4}, 0, 0).data(kBytes).bytes());
  int output[2];
  ASSERT_EQ(::pipe(output), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::dup2(output[1], STDERR_FILENO);
    install_mapped_file_guard();
    const auto checkpoint = Checkpoint::open(path);
    const TensorInfo* tensor = checkpoint->find("t");
    std::filesystem::resize_file(path, 4096);
    checkpoint->drop_pages(tensor->data, tensor->bytes);
    const volatile std::byte* data = tensor->data;
    ::_exit(data[tensor->bytes - 1] == std::byte{1} ? 40 : 41);  // reached only if the read works
  }
  ::close(output[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t count; (count = ::read(output[0], buffer, sizeof(buffer))) > 0;) {
    text.append(buffer, static_cast<std::size_t>(count));
  }
  ::close(output[0]);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << "ended by signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 1);
  EXPECT_HAS(text, path.string());
  EXPECT_HAS(text, "truncated");
}

}  // namespace
}  // namespace tensorfold
