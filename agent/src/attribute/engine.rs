//! Inference servers known by their command line: the target `auto`.
//!
//! What runs is looked at, not what is mentioned: `vim vllm.py` and `grep vllm` run an editor and a search. Interpreters are
//! looked through to the module or script they run; shells and wrappers are not, for the server they start is a process of its
//! own. `docs/targets.md` says it in users' words.

use serde::Serialize;

/// A known inference server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Engine {
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
    /// NVIDIA Triton.
    Triton,
    /// Hugging Face Text Generation Inference.
    Tgi,
    /// Hugging Face Text Embeddings Inference.
    Tei,
    /// llama.cpp's server, its Python binding's, and llamafile.
    LlamaCpp,
    /// Ollama.
    Ollama,
    /// NVIDIA TensorRT-LLM.
    TensorrtLlm,
    /// LMDeploy.
    Lmdeploy,
    /// Seldon MLServer.
    Mlserver,
    /// NVIDIA Dynamo.
    Dynamo,
    /// Ray Serve.
    RayServe,
}

/// How a command line gives an engine away.
#[derive(Clone, Copy, Debug)]
enum Sign {
    /// The program or Python script of this name.
    Program(&'static str),
    /// The same, with one of these as its first word that is no option.
    Command(&'static str, &'static [&'static str]),
    /// `python -m` this module, or one inside it, or the module's file as a script.
    Module(&'static str),
    /// A process title (setproctitle) that begins so.
    Title(&'static str),
}

use Sign::{Command, Module, Program, Title};

const SIGNS: &[(Sign, Engine)] = &[
    (Command("vllm", &["serve"]), Engine::Vllm),
    (Module("vllm.entrypoints.openai"), Engine::Vllm),
    (Module("vllm.entrypoints.api_server"), Engine::Vllm),
    (Title("VLLM::"), Engine::Vllm),
    (Command("sglang", &["serve"]), Engine::Sglang),
    (Module("sglang.launch_server"), Engine::Sglang),
    (Module("sglang_router.launch_server"), Engine::Sglang),
    (Title("sglang::"), Engine::Sglang),
    (Program("tritonserver"), Engine::Triton),
    (Program("text-generation-launcher"), Engine::Tgi),
    (Program("text-generation-router"), Engine::Tgi),
    (Command("text-generation-server", &["serve"]), Engine::Tgi),
    (Program("text-embeddings-router"), Engine::Tei),
    (Program("llama-server"), Engine::LlamaCpp),
    (Program("llamafile"), Engine::LlamaCpp),
    (Module("llama_cpp.server"), Engine::LlamaCpp),
    (Command("ollama", &["serve", "start"]), Engine::Ollama),
    (Program("trtllm-serve"), Engine::TensorrtLlm),
    (Module("tensorrt_llm.commands.serve"), Engine::TensorrtLlm),
    (Command("lmdeploy", &["serve"]), Engine::Lmdeploy),
    (Module("lmdeploy.serve"), Engine::Lmdeploy),
    (Command("mlserver", &["start"]), Engine::Mlserver),
    (Program("dynamo"), Engine::Dynamo),
    (Program("dynamo-run"), Engine::Dynamo),
    (Module("dynamo"), Engine::Dynamo),
    (Command("ray", &["serve"]), Engine::RayServe),
    (Module("ray.serve"), Engine::RayServe),
    (Title("ray::ProxyActor"), Engine::RayServe),
    (Title("ray::HTTPProxy"), Engine::RayServe),
    (Title("ray::ServeReplica"), Engine::RayServe),
];

impl Engine {
    /// Its name as labels have it (`gen_ai_provider_name`).
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::Sglang => "sglang",
            Self::Triton => "triton",
            Self::Tgi => "tgi",
            Self::Tei => "tei",
            Self::LlamaCpp => "llama-cpp",
            Self::Ollama => "ollama",
            Self::TensorrtLlm => "tensorrt-llm",
            Self::Lmdeploy => "lmdeploy",
            Self::Mlserver => "mlserver",
            Self::Dynamo => "dynamo",
            Self::RayServe => "ray-serve",
        }
    }

    /// The engine that a command line runs, if it is a known one.
    #[must_use]
    pub fn of(command_line: &[String]) -> Option<Self> {
        let running = Running::of(command_line)?;
        SIGNS.iter().find(|(sign, _)| running.shows(*sign)).map(|(_, engine)| *engine)
    }
}

/// What a command line runs.
struct Running<'a> {
    /// First word as it is: a process title is there.
    title: &'a str,
    /// Name of the program or script, without folders and `.py`; of `-m`, nothing.
    program: &'a str,
    /// Dotted name of the module, where one is run.
    module: Option<String>,
    /// What follows.
    words: &'a [String],
}

impl<'a> Running<'a> {
    fn of(command_line: &'a [String]) -> Option<Self> {
        let (first, rest) = command_line.split_first()?;
        let program = base(first);
        if !is_python(program) {
            return Some(Self { title: first, program, module: None, words: rest });
        }
        let mut words = rest.iter();
        while let Some(word) = words.next() {
            if word == "-m" {
                let module = words.next()?.clone();
                return Some(Self { title: first, program: "", module: Some(module), words: words.as_slice() });
            }
            if let Some(module) = word.strip_prefix("-m") {
                return Some(Self { title: first, program: "", module: Some(module.to_owned()), words: words.as_slice() });
            }
            match word.as_str() {
                // Code in the command line: who started it says what it is.
                word if word.starts_with("-c") || word == "-" => return None,
                "-W" | "-X" | "--check-hash-based-pycs" => drop(words.next()),
                option if option.starts_with('-') => {}
                script => {
                    let module = script.strip_suffix(".py").map(|path| path.trim_start_matches('/').replace('/', "."));
                    return Some(Self { title: first, program: base(script), module, words: words.as_slice() });
                }
            }
        }
        None
    }

    fn shows(&self, sign: Sign) -> bool {
        match sign {
            Program(name) => self.program == name,
            Command(name, commands) => {
                let named = self.program == name || self.module.as_deref() == Some(name);
                let command = self.words.iter().find(|word| !word.starts_with('-'));
                named && command.is_some_and(|command| commands.contains(&command.as_str()))
            }
            Module(name) => self.module.as_deref().is_some_and(|module| is_inside(module, name, self.program.is_empty())),
            Title(prefix) => self.title.starts_with(prefix),
        }
    }
}

/// Is `module` the package `name` or in it? The file of a script may stand in any folder; what is run by `-m` may not.
fn is_inside(module: &str, name: &str, by_name: bool) -> bool {
    let begins = |module: &str| module.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    if by_name {
        return begins(module);
    }
    // A folder that happens to be called `dynamo` or `ray` is no sign: only names with a dot are unmistakable in a path.
    name.contains('.') && module.match_indices('.').map(|(dot, _)| &module[dot + 1..]).chain([module]).any(begins)
}

fn base(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn is_python(program: &str) -> bool {
    let version = program.strip_prefix("python").or_else(|| program.strip_prefix("pypy"));
    version.is_some_and(|version| version.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.' || byte == b't'))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(command_line: &str) -> Option<Engine> {
        Engine::of(&command_line.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn servers_as_people_start_them() {
        for (command_line, engine) in [
            ("python -m vllm.entrypoints.openai.api_server --model m", Engine::Vllm),
            ("/usr/bin/python3.12 -u -X dev -m vllm.entrypoints.openai.api_server", Engine::Vllm),
            ("python3 -mvllm.entrypoints.openai.api_server", Engine::Vllm),
            ("/usr/bin/python3 /usr/local/bin/vllm serve Qwen/Qwen3-8B --port 8000", Engine::Vllm),
            ("vllm serve m", Engine::Vllm),
            ("python3 -m vllm serve m", Engine::Vllm),
            ("python3 /opt/vllm/vllm/entrypoints/openai/api_server.py", Engine::Vllm),
            ("python3 vllm/entrypoints/api_server.py", Engine::Vllm),
            ("VLLM::EngineCore", Engine::Vllm),
            ("python3 -m sglang.launch_server --model-path m", Engine::Sglang),
            ("sglang serve --model-path m", Engine::Sglang),
            ("sglang::scheduler_TP0", Engine::Sglang),
            ("tritonserver --model-repository=/models", Engine::Triton),
            ("/opt/tritonserver/bin/tritonserver --http-port 8000", Engine::Triton),
            ("text-generation-launcher --model-id m", Engine::Tgi),
            ("text-generation-router serve", Engine::Tgi),
            ("/opt/venv/bin/python /opt/venv/bin/text-generation-server serve m", Engine::Tgi),
            ("text-embeddings-router --model-id m", Engine::Tei),
            ("/usr/bin/llama-server -m model.gguf", Engine::LlamaCpp),
            ("./llama-server", Engine::LlamaCpp),
            ("python3 -m llama_cpp.server --model m.gguf", Engine::LlamaCpp),
            ("/usr/local/bin/ollama serve", Engine::Ollama),
            ("ollama start", Engine::Ollama),
            ("/usr/bin/python3 /usr/local/bin/trtllm-serve m --port 8000", Engine::TensorrtLlm),
            ("trtllm-serve serve m", Engine::TensorrtLlm),
            ("/usr/bin/python /usr/bin/lmdeploy serve api_server m", Engine::Lmdeploy),
            ("python3 /usr/local/bin/mlserver start .", Engine::Mlserver),
            ("dynamo run in=http out=vllm m", Engine::Dynamo),
            ("python3 -m dynamo.frontend --http-port 8000", Engine::Dynamo),
            ("python3 -W ignore -m dynamo.vllm --model m", Engine::Dynamo),
            ("ray --verbose serve", Engine::RayServe),
            ("ray::ProxyActor", Engine::RayServe),
            ("ray::ServeReplica:app:Model.handle", Engine::RayServe),
        ] {
            assert_eq!(of(command_line), Some(engine), "{command_line}");
        }
    }

    #[test]
    fn what_only_mentions_a_server_is_none() {
        for command_line in [
            "vim vllm.py",
            "grep vllm",
            "grep -r vllm serve",
            "less /var/log/vllm.log",
            "tail -f tritonserver",
            "bash -c vllm serve m",
            "sh /opt/vllm serve m",
            "docker run vllm/vllm-openai serve m",
            "kubectl exec pod -- vllm serve m",
            "python3 -c import vllm.entrypoints.openai.api_server",
            "python3 vllm.py",
            "python3 serve.py vllm serve",
            "python3 -m pytest vllm.entrypoints.openai",
            "python3 -m http.server vllm serve",
            "python3 -m my.vllm.entrypoints.openai.api_server",
            "python3 -m vllm.entrypoints.openaix",
            "python3 -m dynamometer",
            "python3 /home/dynamo/train.py",
            "python3 /opt/ray/serve/train.py.txt",
            "vllm bench serve",
            "vllm chat",
            "vllm",
            "ollama run m",
            "ollama",
            "lmdeploy chat m",
            "mlserver build .",
            "ray start --head",
            "node /usr/bin/vllm serve",
            "python3",
            "python3 -",
            "python3 -m",
            "pythonista -m vllm.entrypoints.openai.api_server",
            "llama-server-exporter",
            "ray::IDLE",
            "",
        ] {
            assert_eq!(of(command_line), None, "{command_line}");
        }
        assert_eq!(Engine::of(&[]), None);
    }

    proptest! {
        #[test]
        fn any_words_are_looked_at(words in proptest::collection::vec("[ -~]{0,12}", 0..6)) {
            let _ = Engine::of(&words);
        }
    }
}
