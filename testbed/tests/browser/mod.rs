//! A page as a browser shows it: Chromium's headless shell, which `cargo xtask test` installs.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde::Deserialize;
use testbed::exec;

/// The browser, as Debian's package of that name has it.
const BROWSER: &str = "chromium-headless-shell";
/// Milliseconds after which a page counts as laid out.
const BUDGET: &str = "--virtual-time-budget=2000";

/// What the page's own layout says: replaces the page by it, for `--dump-dom`.
const LOOK: &str = r"<script>
const problems = [], root = document.documentElement;
const say = (what, text) => problems.push(what + ': ' + text.trim().slice(0, 80));
if (root.scrollWidth > innerWidth + 1) say('wider than the window', `${root.scrollWidth} of ${innerWidth}`);
const wide = [...document.querySelectorAll('.wide')].filter(box => box.scrollWidth > box.clientWidth + 1).length;
let drawn = 0, texts = 0;
for (const svg of document.querySelectorAll('svg')) {
  const frame = svg.getBoundingClientRect();
  if (frame.width > 0 && frame.height > 0) drawn += 1;
  const boxes = [...svg.querySelectorAll('text')].map(text => [text.textContent, text.getBoundingClientRect()]);
  texts += boxes.length;
  for (const [text, box] of boxes) {
    if (box.width === 0) say('text that is not drawn', text);
    if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1 || box.bottom > frame.bottom + 1)
      say('text beyond its picture', text);
  }
  boxes.forEach(([one, a], index) => boxes.slice(index + 1).forEach(([other, b]) => {
    const x = Math.min(a.right, b.right) - Math.max(a.left, b.left), y = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (x > 2 && y > 4) say('texts over each other', `${one} | ${other}`);
  }));
}
const pre = document.createElement('pre');
pre.textContent = JSON.stringify({ problems, wide, drawn, texts });
document.body.replaceChildren(pre);
</script>
</body>";

/// What a browser made of a page.
#[derive(Debug, Deserialize)]
pub(crate) struct Looked {
    /// Texts over each other, beyond their picture or not drawn, and a page wider than the window.
    pub(crate) problems: Vec<String>,
    /// Tables that are wider than the page, and scroll.
    pub(crate) wide: usize,
    /// Pictures that have a size.
    pub(crate) drawn: usize,
    /// Texts in pictures.
    pub(crate) texts: usize,
}

/// Lays a page out in a window of that width.
pub(crate) fn look(page: &Path, width: u32) -> Looked {
    let html = fs::read_to_string(page).expect("a page");
    assert_eq!(html.matches("</body>").count(), 1, "{}", page.display());
    let copy = page.with_extension("looked.html");
    fs::write(&copy, html.replace("</body>", LOOK)).expect("a copy");
    let dom = browse(width, &copy, &["--dump-dom".to_owned()]);
    let json = dom.split_once("<pre>").and_then(|(_, rest)| rest.split_once("</pre>"));
    let (json, _) = json.unwrap_or_else(|| panic!("the page has not looked at itself: {dom}"));
    let json = json.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
    serde_json::from_str(&json).unwrap_or_else(|error| panic!("{error}: {json}"))
}

/// The pixels of a picture, as red, green and blue.
pub(crate) type Pixels = Vec<[u8; 3]>;

/// A screenshot of the top of a page, in light or dark colours.
pub(crate) fn screenshot(page: &Path, (width, height): (u32, u32), dark: bool) -> Pixels {
    let file = page.with_extension(if dark { "dark.png" } else { "png" });
    let scheme = format!("--blink-settings=preferredColorScheme={}", u8::from(!dark));
    let shot = format!("--screenshot={}", file.display());
    browse(width, page, &[shot, scheme, format!("--window-size={width},{height}")]);
    let decoder = png::Decoder::new(std::io::BufReader::new(fs::File::open(&file).expect("a screenshot")));
    let mut reader = decoder.read_info().expect("a picture");
    let mut bytes = vec![0; reader.output_buffer_size().expect("a size")];
    let info = reader.next_frame(&mut bytes).expect("a frame");
    assert_eq!((info.width, info.height, info.bit_depth), (width, height, png::BitDepth::Eight));
    bytes.chunks_exact(info.color_type.samples()).map(|pixel| [pixel[0], pixel[1], pixel[2]]).collect()
}

/// How many pixels have about this colour.
pub(crate) fn count(pixels: &Pixels, colour: [u8; 3]) -> usize {
    let near = |pixel: &&[u8; 3]| pixel.iter().zip(colour).all(|(one, other)| one.abs_diff(other) < 4);
    pixels.iter().filter(near).count()
}

fn browse(width: u32, page: &Path, more: &[String]) -> String {
    let mut command: Command = exec::command(BROWSER);
    // Root needs --no-sandbox; the page is ours. Tests have no GPU, and containers a small /dev/shm.
    command.args(["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", BUDGET]);
    command.arg(format!("--window-size={width},900")).args(more).arg(format!("file://{}", page.display()));
    let out =
        command.output().unwrap_or_else(|error| panic!("{BROWSER}: {error}; apt-get install {BROWSER}"));
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{BROWSER}: {said}");
    String::from_utf8_lossy(&out.stdout).into_owned()
}
