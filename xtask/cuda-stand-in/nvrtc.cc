// A libnvrtc that compiles CUDA C++ for this processor, with g++ and include/emulated.h for CUDA's own headers.
//
// Compiled kernels are kept in the folder that CUDA_STAND_IN_KERNELS names, under a hash of their source.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <regex>
#include <string>

namespace {

constexpr int SUCCESS = 0, COMPILATION = 6;

struct Program {
    std::string source, image, log;
};

std::string variable(const char* name, const char* otherwise) {
    const char* value = getenv(name);
    return value ? value : otherwise;
}

std::string read(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// The source as g++ takes it: shared memory is one array of the emulator's, and each kernel has a way in.
std::string translate(const std::string& source) {
    static const std::regex shared(R"(extern\s+__shared__\s+(?:__align__\(\d+\)\s+)?char\s+(\w+)\[\];)");
    static const std::regex kernel(R"(__global__\s+void\s+(?:__launch_bounds__\([^)]*\)\s*)?(\w+)\s*\()");
    std::string text = "#include \"emulated.h\"\n" + std::regex_replace(source, shared, "char* $1 = emulated_shared;");
    for (std::sregex_iterator at(source.begin(), source.end(), kernel), end; at != end; ++at) {
        text += "\nEMULATED_KERNEL(" + (*at)[1].str() + ")\n";
    }
    return text;
}

// -fsanitize=thread has the compiler call a function before each access; those functions are in access.cc. Libraries of
// kernels share no constant of a template, as each has types of its own under the same names.
constexpr char COMPILE[] = "g++ -c -O1 -w -std=c++20 -fpermissive -fPIC -fsanitize=thread -fno-gnu-unique";

std::string command(const std::string& source, const std::string& library, const std::string& log) {
    const std::string home = variable("CUDA_STAND_IN_HOME", ".");
    const std::string object = library + ".o";
    const std::string compile = std::string(COMPILE) + " -I" INCLUDE_DIR " -I" + home + "/include -o " + object + " " +
                                source + " 2> " + log;
    const std::string link = "g++ -shared -o " + library + " " + object + " -L" + home + " -l:libcuda.so 2>> " + log;
    return compile + " && " + link + " && rm " + object;
}

// Whether a kernel is one that CUDA_STAND_IN_REFUSES says a word of, to see what is made of what does not compile.
bool is_refused(const Program& program) {
    const std::string text = variable("CUDA_STAND_IN_REFUSES", "");
    return !text.empty() && program.source.find(text) != std::string::npos;
}

int compile(Program& program) {
    if (is_refused(program)) return program.log = "error: a refusal made on purpose", COMPILATION;
    const std::string text = translate(program.source);
    const size_t key = std::hash<std::string>()(COMPILE + text + read(INCLUDE_DIR "/emulated.h") + read(INCLUDE_DIR "/threads.h"));
    char name[32];
    snprintf(name, sizeof name, "/%016zx", key);
    const std::string stem = variable("CUDA_STAND_IN_KERNELS", ".") + name;
    program.image = "emulated " + stem + ".so";
    if (access((stem + ".so").c_str(), R_OK) == 0) return SUCCESS;
    // Under a name of its own first, as another process may be about to compile the same.
    const std::string own = stem + "." + std::to_string(getpid());
    std::ofstream(own + ".cc") << text;
    const int status = system(command(own + ".cc", own + ".so", own + ".log").c_str());
    program.log = read(own + ".log");
    rename((own + ".cc").c_str(), (stem + ".cc").c_str());
    unlink((own + ".log").c_str());
    if (status != 0) return COMPILATION;
    rename((own + ".so").c_str(), (stem + ".so").c_str());
    return SUCCESS;
}

}  // namespace

extern "C" {

// 13.0, as the driver has it, or what CUDA_STAND_IN_NVRTC says.
int nvrtcVersion(int* major, int* minor) {
    return sscanf(variable("CUDA_STAND_IN_NVRTC", "13.0").c_str(), "%d.%d", major, minor) == 2 ? SUCCESS : COMPILATION;
}

const char* nvrtcGetErrorString(int status) {
    return status == COMPILATION ? "NVRTC_ERROR_COMPILATION" : "an error of the emulated NVRTC";
}

int nvrtcCreateProgram(Program** program, const char* source, const char*, int, const char* const*, const char* const*) {
    *program = new Program{source, "", ""};
    return SUCCESS;
}

int nvrtcDestroyProgram(Program** program) {
    delete *program;
    *program = nullptr;
    return SUCCESS;
}

int nvrtcCompileProgram(Program* program, int, const char* const*) { return compile(*program); }

int nvrtcGetPTXSize(Program* program, size_t* bytes) {
    *bytes = program->image.size() + 1;
    return SUCCESS;
}

int nvrtcGetPTX(Program* program, char* out) {
    strcpy(out, program->image.c_str());
    return SUCCESS;
}

int nvrtcGetProgramLogSize(Program* program, size_t* bytes) {
    *bytes = program->log.size() + 1;
    return SUCCESS;
}

int nvrtcGetProgramLog(Program* program, char* out) {
    strcpy(out, program->log.c_str());
    return SUCCESS;
}
}
