//! Which images there are, and what is in each.

use std::rc::Rc;

use anyhow::Result;
use oci_image::layer::{Layer, Tree};
use oci_image::layout::Image;
use serde_json::{Value, json};

use super::{COREDNS, Inputs, names, userland};

/// Every image that a spec or the cluster itself starts here. Not every image of the suite's list is made: the
/// others belong to specs that cannot run without a cloud, a GPU or Windows.
pub(super) fn images(inputs: &mut Inputs<'_>, wanted: &[String]) -> Result<Vec<Image>> {
    let userland = Rc::new(userland::tree(inputs)?.layer()?);
    let pause = one_program(inputs, "pause", "k8s/pause")?;
    let coredns = one_program(inputs, "coredns", "coredns/coredns")?;
    let regression = one_program(inputs, "regression-issue-74839", "k8s/regression-issue-74839")?;
    let agnhost = agnhost(inputs)?.layer()?;
    let mut page = Tree::default();
    page.text("www/index.html", "ok\n");
    Ok(vec![
        Image {
            layers: vec![pause],
            config: config(json!({"Entrypoint": ["/pause"], "User": "65535:65535"})),
            names: names::all(wanted, "pause")?,
            created: None,
        },
        Image {
            layers: vec![Rc::clone(&userland)],
            config: config(json!({"Cmd": ["sh"]})),
            // The last two are wanted for one program each, which the userland has: dig and conntrack.
            names: several(wanted, &["busybox", "glibc-dns-testing", "distroless-iptables"])?,
            created: None,
        },
        Image {
            layers: vec![Rc::clone(&userland), Rc::new(page.layer()?)],
            config: config(json!({"Cmd": ["busybox", "httpd", "-f", "-p", "80", "-h", "/www"]})),
            names: names::all(wanted, "nginx")?,
            created: None,
        },
        Image {
            // A DNS spec starts /coredns out of this image.
            layers: vec![Rc::clone(&userland), Rc::new(agnhost), Rc::clone(&coredns)],
            config: config(json!({
                "Entrypoint": ["/agnhost"],
                "Cmd": ["pause"],
                "ExposedPorts": {"80/tcp": {}, "5000/tcp": {}, "8080/tcp": {}, "8081/tcp": {}, "9376/tcp": {}},
            })),
            names: names::all(wanted, "agnhost")?,
            created: None,
        },
        Image {
            layers: vec![userland, regression],
            config: config(json!({"Entrypoint": ["/regression-issue-74839"]})),
            names: names::all(wanted, "regression-issue-74839")?,
            created: None,
        },
        Image {
            layers: vec![coredns],
            config: config(json!({"Entrypoint": ["/coredns"]})),
            names: vec![COREDNS.to_owned()],
            created: None,
        },
    ])
}

/// The suite's server for everything, with the files that it looks for.
fn agnhost(inputs: &mut Inputs<'_>) -> Result<Tree> {
    let mut tree = Tree::default();
    tree.program("agnhost", &inputs.program("k8s/agnhost")?);
    tree.link("agnhost-2", "agnhost");
    tree.copy("localhost.crt", &inputs.program("k8s/porter.crt")?);
    tree.copy("localhost.key", &inputs.program("k8s/porter.key")?);
    tree.directory("uploads", 0o755);
    tree.directory("var/registry", 0o755);
    Ok(tree)
}

/// A layer with one program in the root directory.
fn one_program(inputs: &mut Inputs<'_>, name: &str, built: &str) -> Result<Rc<Layer>> {
    let mut tree = Tree::default();
    tree.program(name, &inputs.program(built)?);
    Ok(Rc::new(tree.layer()?))
}

fn several(wanted: &[String], images: &[&str]) -> Result<Vec<String>> {
    let all: Result<Vec<_>> = images.iter().map(|image| names::all(wanted, image)).collect();
    Ok(all?.concat())
}

/// An image's configuration with the `PATH` that all have.
fn config(mut config: Value) -> Value {
    config["Env"] = json!(["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]);
    config
}
