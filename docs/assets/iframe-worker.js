// A page that is opened as a file may start no worker. There the search's script runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    #loaded;
    #frame = document.createElement("iframe");

    constructor(url) {
      super();
      this.#frame.hidden = true;
      document.body.append(this.#frame);
      const inside = this.#frame.contentWindow;
      inside.document.write("<!doctype html><body>"); // ends the load of an empty page, which Firefox has begun
      inside.document.close();
      inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", {data}));
      const script = Object.assign(inside.document.createElement("script"), {src: url});
      this.#loaded = new Promise(done => script.addEventListener("load", done));
      inside.document.body.append(script);
    }

    postMessage(data) {
      this.#loaded.then(() => this.#frame.contentWindow.dispatchEvent(new MessageEvent("message", {data})));
    }

    terminate() {
      this.#frame.remove();
    }
  };
}
